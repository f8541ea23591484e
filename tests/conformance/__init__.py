"""PyTorch's own distributed tests, driven through an engine of ours."""
