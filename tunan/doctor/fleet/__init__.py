"""Several machines looked at together: over ssh, or from the bundles of each."""
