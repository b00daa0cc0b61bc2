"""What a machine says of its NPUs, drivers and itself. Unknown is None, never a guess."""
