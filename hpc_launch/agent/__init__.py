"""Programs that run inside the job: standard library only, Python 3.6 or later, no imports from the package."""
