"""What stands between the caller and the kernel: layers are data, and a stack of them prints as one flat call."""
