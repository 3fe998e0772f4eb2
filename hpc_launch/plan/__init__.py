"""From merged values to a launch plan, and the rules that a plan must meet before anything is submitted. Pure."""
