"""What the commands of `platojax` do, once their arguments are read."""
