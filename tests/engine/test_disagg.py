"""Prefill in one process, decode in another: the same tokens, and no state taken on trust."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, distributed

from engine.cache import Cache
from engine.checkpoint import Tensors
from engine.config import ModelConfig
from engine.disagg.handoff import HandoffError, pack, unpack
from engine.disagg.transfer import receive_cache, send_cache, send_packed
from engine.engine import Engine
from engine.parallel.launch import spawn
from engine.settings import EngineSettings
from kernels.index_page_ref import reader_layout
from tests.engine.data.tiny import CONFIG, prompts, weights

# Two pages of index keys, and open windows in every compressor.
PROMPT_TOKENS = 299
NUM_DECODED = 6
STATE_PARTS = ("pending_kv", "pending_gate", "overlap_kv", "overlap_logit")


def engine_of(index_keys: str = "fp8") -> Engine:
    torch.set_num_threads(1)
    return Engine(ModelConfig.from_dict(CONFIG), Tensors(weights(0), "tiny"), EngineSettings(index_keys=index_keys))


def prompt() -> Tensor:
    return torch.cat((prompts(1, batch=2), prompts(2, batch=2)), 1)[:, :PROMPT_TOKENS]


def decoded(engine: Engine, cache: Cache, ids_B: Tensor) -> list[list[int]]:
    tokens = []
    for _ in range(NUM_DECODED):
        tokens.append(ids_B.tolist())
        ids_B = engine.decode(ids_B, cache).argmax(-1)
    return tokens


def prefill_here_decode_there(rank: int, spoil: str) -> list[list[int]] | str | None:
    engine = engine_of()
    if rank == 1:
        try:
            return decoded(engine, *receive_cache(engine, source=0))
        except HandoffError as error:
            return error.message
    logits_BPV, cache = engine.prefill(prompt())
    next_ids_B = logits_BPV[:, -1].argmax(-1)
    if not spoil:
        send_cache(engine, cache, next_ids_B, to=1)
        return None
    header, tensors = pack(cache, engine)
    place = next(i for i, state in enumerate(header.states) if (state.layer, state.name) == (3, spoil))
    # The last byte of the last row: only its block may be blamed.
    tensors[place] = tensors[place].clone()
    tensors[place][-1, -1].view(torch.uint8)[-1] ^= 1
    send_packed(header, tensors, next_ids_B, to=1)
    return None


def test_the_other_process_goes_on_with_the_tokens_of_one() -> None:
    engine = engine_of()
    logits_BPV, cache = engine.prefill(prompt())
    expected = decoded(engine, cache, logits_BPV[:, -1].argmax(-1))

    _, tokens = spawn(2, prefill_here_decode_there, "")

    assert tokens == expected


@pytest.mark.parametrize(
    ("spoil", "blamed"),
    [
        ("index_pages", "layer 3, index_pages, block 1 (rows 1 to 1): arrived with digest "),
        ("entries", "layer 3, entries, block 1 (rows 64 to 73): arrived with digest "),
    ],
)
def test_a_byte_that_changed_on_the_way_is_named_by_layer_and_block(spoil: str, blamed: str) -> None:
    _, message = spawn(2, prefill_here_decode_there, spoil)

    assert message.startswith(blamed)


def test_everything_that_decoding_remembers_is_handed_over() -> None:
    engine = engine_of()
    _, cache = engine.prefill(prompt(), [])

    header, _ = pack(cache, engine)

    compressors = [f"{name}.{part}" for name in ("compressor", "index_compressor") for part in STATE_PARTS]
    names = {layer: [one.name for one in header.states if one.layer == layer] for layer in range(6)}
    assert names[0] == ["window"]
    assert names[1] == ["window", "entries", *compressors, "index_pages"]
    assert names[2] == ["window", "entries", *compressors[:4]]


def test_one_bit_of_any_state_is_blamed_on_its_layer_state_and_block() -> None:
    engine = engine_of()
    _, cache = engine.prefill(prompt(), [])
    header, tensors = pack(cache, engine)
    kinds = set()

    for place, state in enumerate(header.states):
        if not tensors[place].numel():
            continue
        kinds.add(state.name)
        # In the first row and in the last: its own block is blamed, no other one.
        for row in {0, state.shape[1] - 1}:
            spoiled = list(tensors)
            spoiled[place] = tensors[place].clone()
            spoiled[place][-1, row].view(torch.uint8).view(-1)[-1] ^= 1
            with pytest.raises(HandoffError) as caught:
                unpack(header, spoiled, engine)
            block = row // state.rows_per_block
            assert caught.value.message.startswith(f"layer {state.layer}, {state.name}, block {block} (rows ")

    compressors = [f"{name}.{part}" for name in ("compressor", "index_compressor") for part in STATE_PARTS]
    assert kinds == {"window", "entries", "index_pages", *compressors}


def test_keys_and_scales_of_the_index_pages_are_both_digested() -> None:
    engine = engine_of()
    _, cache = engine.prefill(prompt(), [])
    header, tensors = pack(cache, engine)
    place = next(i for i, state in enumerate(header.states) if state.name == "index_pages")
    layout = reader_layout(CONFIG["index_head_dim"])
    # The first byte of key 7's values, and of its scale.
    for byte in (layout.value_base + 7 * layout.value_stride, layout.scale_base + 7 * layout.scale_stride):
        spoiled = list(tensors)
        spoiled[place] = tensors[place].clone()
        spoiled[place].view(torch.uint8)[0, 1].view(-1)[byte] ^= 1

        with pytest.raises(HandoffError, match=r"layer 1, index_pages, block 1 \(rows 1 to 1\)"):
            unpack(header, spoiled, engine)


def test_an_engine_with_other_index_keys_refuses_the_pages() -> None:
    engine = engine_of("fp8")
    _, cache = engine.prefill(prompt(), [])

    with pytest.raises(HandoffError, match=r"layer 1, index_pages: torch.uint8 .* arrived, expected torch.bfloat16"):
        unpack(*pack(cache, engine), engine_of("bf16"))


def test_state_of_another_checkpoint_is_refused_although_it_fits() -> None:
    engine = engine_of()
    _, cache = engine.prefill(prompt(), [])
    tensors = weights(0)
    tensors["model.layers.4.input_layernorm.weight"][3] += 1e-3
    other = Engine(ModelConfig.from_dict(CONFIG), Tensors(tensors, "tiny"), EngineSettings())

    with pytest.raises(HandoffError, match=r"have fingerprint [0-9a-f]{12}, expected [0-9a-f]{12}"):
        unpack(*pack(cache, engine), other)


def test_a_cache_taken_over_does_not_touch_the_one_it_came_from() -> None:
    engine = engine_of()
    logits_BPV, cache = engine.prefill(prompt())
    first_ids_B = logits_BPV[:, -1].argmax(-1)
    taken = unpack(*pack(cache, engine), engine)

    there = decoded(engine, taken, first_ids_B)

    assert decoded(engine, cache, first_ids_B) == there
    assert not distributed.is_initialized()
