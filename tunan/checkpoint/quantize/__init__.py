"""Weights in integers: which layers, by which scheme, rounded how, under which names."""
