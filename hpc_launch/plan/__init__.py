"""Turn merged values into a launch plan, and check it before anything is submitted. Pure."""
