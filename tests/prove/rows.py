"""All rows, in the order of the table."""

from __future__ import annotations

from tests.prove import rows_nodes, rows_program, rows_slurm, rows_storage

_PARTS = {
    "Nodes and network": rows_nodes.ROWS,
    "The training": rows_program.ROWS,
    "Storage and software": rows_storage.ROWS,
    "Slurm and its people": rows_slurm.ROWS,
}
GROUPS = {title: [row.key for row in rows] for title, rows in _PARTS.items()}
ROWS = {row.key: row for rows in _PARTS.values() for row in rows}
QUICK = [row for row in ROWS.values() if row.quick]
"""Those of which the usual tests run some."""
