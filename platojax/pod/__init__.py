"""What a compiled train step will cost on a pod, found without one."""
