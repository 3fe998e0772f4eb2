"""Shared basics: errors, findings, shipped files, atomic writes. Imports nothing else of the package."""
