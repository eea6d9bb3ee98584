"""The keys of the state_dict are the names of the parameters.

Each test is a library, or a loop, that copies, shards, saves or loads weights by name. With other
names, the weights of query, key and value would be unchanged, often without an error.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

import headwise as hw

E, H = 12, 3


def make(**options: object) -> hw.MultiheadAttention:
    module = hw.MultiheadAttention(E, H, batch_first=True, **options)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    return module


class Model(nn.Module):
    """An attention inside a model, as a library meets it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = make()
        self.head = nn.Linear(E, E)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attention(x, x, x, need_weights=False)[0])


def equal(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


@pytest.mark.parametrize(
    "options",
    [{}, {"bias": False}, {"kdim": 7}, {"num_kv_heads": 1}, {"add_bias_kv": True}, {"sinks": True}],
    ids=str,
)
def test_the_names_are_those_of_the_parameters_and_buffers(options: dict[str, object]) -> None:
    module = make(**options)
    state = module.state_dict()
    assert list(state) == [name for name, _ in module.named_parameters()]
    for name, parameter in module.named_parameters():
        assert state[name].data_ptr() == parameter.data_ptr()  # no copies


@pytest.mark.parametrize(
    "options", [{}, {"bias": False}, {"kdim": 7}, {"add_bias_kv": True}], ids=str
)
def test_torchs_names_are_given_on_request(options: dict[str, object]) -> None:
    ours, theirs = make(**options), nn.MultiheadAttention(E, H, batch_first=True, **options)
    state = ours.torch_state_dict()
    assert [(n, x.shape) for n, x in state.items()] == [
        (n, x.shape) for n, x in theirs.state_dict().items()
    ]
    theirs.load_state_dict(state)
    again = make(**options)
    again.load_state_dict(theirs.state_dict())
    assert equal(again, ours)


def test_an_average_of_the_weights_moves_every_weight() -> None:
    """As timm's EMA: values of the state_dict are changed in place."""
    model, average = Model(), Model()
    source = model.state_dict()
    for name, value in average.state_dict().items():
        value.copy_(value * 0.0 + source[name])
    assert equal(average, model)


def test_torchs_averaged_model() -> None:
    model = Model()
    average = torch.optim.swa_utils.AveragedModel(model)
    for parameter in model.parameters():
        parameter.data.add_(1.0)
    average.update_parameters(model)
    average.update_parameters(model)
    other = Model()
    other.load_state_dict(average.module.state_dict())
    assert equal(other, average.module)


def test_functional_call_with_its_own_state() -> None:
    model, x = Model(), torch.randn(2, 5, E)
    changed = {name: value + 1 for name, value in model.state_dict().items()}
    found = functional_call(model, changed, (x,))
    model.load_state_dict(changed)
    assert torch.equal(found, model(x))


def test_a_stack_of_module_state() -> None:
    models = [Model() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    assert set(parameters) == set(models[0].state_dict())
    assert not buffers


def test_safetensors_keep_it(tmp_path: Path) -> None:
    from safetensors.torch import load_model, save_model

    model, other = Model(), Model()
    save_model(model, str(tmp_path / "model.safetensors"))
    load_model(other, str(tmp_path / "model.safetensors"))
    assert equal(other, model)


def test_accelerate_loads_a_checkpoint(tmp_path: Path) -> None:
    from accelerate import init_empty_weights, load_checkpoint_in_model
    from safetensors.torch import save_file

    model = Model()
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    other = Model()
    load_checkpoint_in_model(other, str(tmp_path / "model.safetensors"))
    assert equal(other, model)
    with init_empty_weights():
        empty = Model()
    load_checkpoint_in_model(empty, str(tmp_path / "model.safetensors"), device_map={"": "cpu"})
    assert equal(empty, model)


@pytest.fixture
def one_process(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("full", [True, False])
def test_distributed_state_dicts(full: bool) -> None:
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions,
        get_model_state_dict,
        set_model_state_dict,
    )

    options = StateDictOptions(full_state_dict=full)
    model, other = Model(), Model()
    state = copy.deepcopy(get_model_state_dict(model, options=options))
    result = set_model_state_dict(other, state, options=options)
    assert not result.missing_keys
    assert not result.unexpected_keys
    assert equal(other, model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_process")
def test_a_distributed_checkpoint_on_disk(tmp_path: Path) -> None:
    import torch.distributed.checkpoint as dcp

    model, other = Model(), Model()
    dcp.save({"model": model.state_dict()}, checkpoint_id=str(tmp_path / "saved"))
    state = {"model": other.state_dict()}
    dcp.load(state, checkpoint_id=str(tmp_path / "saved"))
    other.load_state_dict(state["model"])
    assert equal(other, model)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_process")
def test_fully_sharded_parameters() -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    model, x = Model(), torch.randn(2, 5, E)
    expected, plain = model(x), copy.deepcopy(model)
    fully_shard(model.attention)
    fully_shard(model)
    assert torch.equal(model(x), expected)
    state = model.state_dict()
    assert set(state) == set(plain.state_dict())
    assert all(isinstance(value, DTensor) for value in state.values())
    for name, value in plain.state_dict().items():
        assert torch.equal(state[name].full_tensor(), value)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("one_process")
def test_the_first_fully_sharded_module() -> None:
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = Model()
    plain = copy.deepcopy(model)
    try:
        sharded = FullyShardedDataParallel(
            model, device_id=torch.device("cpu"), use_orig_params=True
        )
    except (RuntimeError, ValueError, AssertionError) as error:
        pytest.skip(f"FSDP1 does not run here: {error}")
    state = sharded.state_dict()
    assert {name: value.shape for name, value in state.items()} == {
        name: value.shape for name, value in plain.state_dict().items()
    }


def test_a_transformers_model_that_holds_it(tmp_path: Path) -> None:
    from transformers import PretrainedConfig, PreTrainedModel

    class Config(PretrainedConfig):
        model_type = "headwise-test"

    class Pretrained(PreTrainedModel):
        config_class = Config
        base_model_prefix = "model"

        def __init__(self, config: Config) -> None:
            super().__init__(config)
            self.model = Model()
            self.post_init()

        def _init_weights(self, module: nn.Module) -> None:
            """Every weight stands as `Model` has made it."""

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x)

    model = Pretrained(Config())
    model.save_pretrained(tmp_path)
    other, report = Pretrained.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert equal(other, model)


def test_peft_adapts_the_projections_and_merges(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model, x = Model(), torch.randn(2, 5, E)
    adapted = get_peft_model(
        copy.deepcopy(model), LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    )
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter)
    expected = adapted(x)
    assert not torch.equal(expected, model(x))
    adapted.save_pretrained(tmp_path)
    names = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert set(names) == {"q_proj", "v_proj"}
    merged = adapted.merge_and_unload()
    other = Model()
    other.load_state_dict(merged.state_dict())
    assert torch.equal(other(x), merged(x))


@pytest.mark.parametrize("assign", [True, False])
def test_checkpoints_of_earlier_versions_load(assign: bool) -> None:
    """They have PyTorch's names."""
    model, other = Model(), Model()
    old = {f"attention.{n}": x for n, x in model.attention.torch_state_dict().items()}
    old |= {f"head.{n}": x for n, x in model.head.state_dict().items()}
    other.load_state_dict(old, strict=True, assign=assign)
    assert equal(other, model)
