"""The same ten tests in the words of three tools: run by `benchmarks.testing`."""
