"""What `tunan install` prints, runs and writes: steps for a system and a chip, files beside."""
