"""What runs inside the job, on its own: the standard library alone, old Pythons too, and nothing of the package."""
