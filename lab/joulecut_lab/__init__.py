"""Research benches that no daemon imports: decoder layers, other systems' rules for clocks."""
