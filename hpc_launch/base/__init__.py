"""What every stage may use: errors, findings, shipped files, atomic writes. Imports nothing of the package."""
