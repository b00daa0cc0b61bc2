
# The clone of this project.
PROJECT=@PROJECT@
