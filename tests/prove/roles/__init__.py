"""Jobs with roles, of which one dies, which share a node, or which have many: what `make prove` shows of them."""
