"""`tunan doctor`: what a machine lacks for a deployment, and how to mend it."""
