"""What runs inside or beside a job: standard library only, and nothing of the rest of the package."""
