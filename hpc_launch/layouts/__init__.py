"""Layouts of processes: how they divide a model and its batch, and the rules that they must meet; pure."""
