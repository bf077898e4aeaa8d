"""Excite in other people's tools: Lightning, Hugging Face, TensorBoard, RobustBench, one file each, all optional."""
