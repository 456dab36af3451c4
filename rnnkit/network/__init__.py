"""What users hold: networks, plans and streams, each a descriptor with weights."""
