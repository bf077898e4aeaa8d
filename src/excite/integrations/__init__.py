"""excite in other tools: Lightning, Hugging Face, TensorBoard and RobustBench, one file each, all optional."""
