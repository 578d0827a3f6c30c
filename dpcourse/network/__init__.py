"""What joins ranks: process groups of our own, under the systems that PyTorch brings."""
