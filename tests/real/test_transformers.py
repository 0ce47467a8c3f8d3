"""Models of transformers in tiny configurations: losses with gradients, and steps of generation with their caches."""

import pytest
import torch
from steps import World, check_steps

transformers = pytest.importorskip("transformers", reason="pip install funcgrad[real]")

TINY = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def bert():
    return transformers.BertForMaskedLM(transformers.BertConfig(**TINY))


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
    )


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, initializer_range=0.2, **TINY))


def t5():
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0, **sizes))


def tokens(step):
    """Ids and a mask, which hides the end of a sentence in every other step."""
    mask = torch.ones(2, 8, dtype=torch.long)
    if step % 2:
        mask[0, 6:] = 0
    return torch.randint(1, 50, (2, 8)), mask


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("build", [bert, gpt2, llama, t5])
def test_a_language_model_learns(build, train):
    def make():
        model = build().train(train)

        def loss(ids, mask):
            return model(input_ids=ids, attention_mask=mask, labels=ids).loss

        return World(loss, tokens, [model])

    check_steps(make, programs=2)


@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_a_vision_transformer_learns(train):
    def make():
        sizes = {k: v for k, v in TINY.items() if k != "vocab_size"}
        model = transformers.ViTForImageClassification(
            transformers.ViTConfig(image_size=16, patch_size=8, **sizes)
        ).train(train)

        def loss(pixels):
            return model(pixel_values=pixels).logits.logsumexp(-1).sum()

        return World(loss, lambda step: (torch.randn(2, 3, 16, 16).requires_grad_(),), [model])

    check_steps(make, programs=1)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_a_step_of_generation_goes_on_from_its_cache(build):
    def make():
        model = build().eval()

        def step(ids, following):
            seen = model(input_ids=ids, use_cache=True)
            return model(input_ids=following, past_key_values=seen.past_key_values, use_cache=True).logits

        return World(step, lambda _: (torch.randint(1, 50, (2, 6)), torch.randint(1, 50, (2, 1))), [model])

    check_steps(make, programs=1)


@pytest.mark.parametrize("build", [gpt2, llama])
def test_greedy_generation_draws_the_same_tokens(build):
    def make():
        model = build().eval()

        def step(ids):
            with torch.no_grad():
                return model.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=3, do_sample=False, pad_token_id=0
                ).float()

        return World(step, lambda _: (torch.randint(1, 50, (2, 6)),), [model])

    check_steps(make, programs=2)


def bart():
    half = {f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in SIZES_OF_BART.items()}
    tokens_of_bart = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    return transformers.BartForConditionalGeneration(
        transformers.BartConfig(vocab_size=50, d_model=16, max_position_embeddings=32, **half, **tokens_of_bart)
    )


SIZES_OF_BART = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}


def batches(step):
    """Sentences in batches of other sizes, padded to the longest."""
    count, longest = 2 + step % 3, 5 + step
    ids, lengths = torch.randint(1, 50, (count, longest)), torch.randint(2, longest + 1, (count,))
    lengths[0] = longest
    return ids, (torch.arange(longest) < lengths[:, None]).long()


def deberta():
    relative = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "max_position_embeddings": 64}
    return transformers.DebertaForMaskedLM(transformers.DebertaConfig(**relative, **TINY))


def mixtral():
    """Its experts compute in single precision, which is the widest of grouped products."""
    routed = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    return transformers.MixtralForCausalLM(
        transformers.MixtralConfig(output_router_logits=True, **routed, **TINY)
    ).float()


@pytest.mark.parametrize("build", [gpt2, llama, bart, deberta, mixtral])
def test_batches_of_other_sizes_are_learnt_from_by_few_programs(build):
    def make():
        model = build().train()

        def loss(ids, mask):
            return model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss

        return World(loss, batches, [model])

    # of 8 tokens, as many as a head has columns, another one
    check_steps(make, programs=3 if build in (gpt2, bart) else 2)


def test_sentences_of_other_lengths_are_classified():
    def make():
        model = transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **TINY)).train()

        def loss(ids, mask, labels):
            return model(input_ids=ids, attention_mask=mask, labels=labels).loss

        def arguments(step):
            ids, mask = batches(step)
            return ids, mask, torch.randint(0, 3, (len(ids),))

        return World(loss, arguments, [model])

    check_steps(make, programs=3)


def test_ids_that_are_their_own_labels_are_learnt_from_by_few_programs():
    def make():
        model = gpt2().train()

        def arguments(step):
            ids, _ = batches(step)
            return ids, ids

        return World(lambda ids, labels: model(input_ids=ids, labels=labels).loss, arguments, [model])

    check_steps(make, programs=2)


def test_a_model_that_registers_hooks_in_its_first_call_learns():
    def make():
        of_encoder = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [8, 16]}
        of_patches = {"patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]}
        model = transformers.SegformerForSemanticSegmentation(
            transformers.SegformerConfig(decoder_hidden_size=8, num_labels=3, **of_encoder, **of_patches)
        ).train()

        def loss(pixels, labels):
            return model(pixel_values=pixels, labels=labels).loss

        return World(loss, lambda step: (torch.randn(2, 3, 16, 16), torch.randint(3, (2, 16, 16))), [model])

    check_steps(make, programs=1)


KEPT = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 32, **TINY}
EXPERTS = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
    "first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 8,
}  # fmt: skip
FAMILIES = {
    "Gemma2ForCausalLM": {"num_key_value_heads": 1, "head_dim": 8},
    "MambaForCausalLM": {"state_size": 4},
    "RwkvForCausalLM": {"attention_hidden_size": 16},
    "DeepseekV3ForCausalLM": EXPERTS,
    "LongformerForMaskedLM": {"attention_window": [4, 4]},
    "NystromformerForMaskedLM": {"num_landmarks": 3, "segment_means_seq_len": 9},
    "FNetForMaskedLM": {},
}
"""State spaces, recurrences, experts, windows and transforms, in the place of attention or beside it."""


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_other_families_learn_from_batches_of_other_sizes(family):
    kind = getattr(transformers, family)

    def make():
        model = kind(kind.config_class(**KEPT, **FAMILIES[family])).train()
        if FAMILIES[family] is EXPERTS:
            model.float()  # the widest of grouped products
        return World(
            lambda ids: model(input_ids=ids, labels=ids).loss,
            lambda step: (torch.randint(3, 50, (2 + step % 3, 9)),),
            [model],
        )

    # there are as many samples as windows in one of the batches
    check_steps(make, programs=3 if family == "LongformerForMaskedLM" else 2)
