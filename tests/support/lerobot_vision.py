"""What LeRobot's policies on language models take from the hub, made small and at random: their
backbones in folders, or built where LeRobot would fetch them. Needs LeRobot 0.6."""

from __future__ import annotations

from pathlib import Path

import torch

WORDS = ("push", "the", "puck", "turn", "on", "stove", "Action", ":", "|")
STATES = 5
MOVES = 3


def tokenizer_of(*special):
    """A tokenizer of few words, with these special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import Qwen2TokenizerFast

    table = {word: i for i, word in enumerate(["<pad>", "<unk>", *special, *WORDS])}
    core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    made = Qwen2TokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<pad>",
        bos_token="<pad>",
    )
    made._tokenizer = core  # transformers builds a byte-level one of its own
    made.add_special_tokens({"additional_special_tokens": list(special)})
    return made


TEMPLATE = (
    "{% for m in messages %}{% for c in m['content'] %}{% if c['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ c['text'] }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
QWEN = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEXT = dict(
    hidden_size=32,
    intermediate_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    vocab_size=128,
    pad_token_id=0,
    bos_token_id=0,
    eos_token_id=0,
    rope_parameters={"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    rope_theta=1e4,
)


def tokens_of(tokenizer):
    """What Qwen's configurations call the tokens around and of a picture."""
    names = ("vision_start", "vision_end", "image", "video")
    found = tokenizer.convert_tokens_to_ids(list(QWEN))
    return {f"{name}_token_id": token for name, token in zip(names, found, strict=True)}


def save_qwen25(folder):
    """A tiny Qwen2.5-VL, with its processor."""
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2VLImageProcessor,
        Qwen2VLVideoProcessor,
    )

    tokenizer = tokenizer_of(*QWEN)
    Qwen2_5_VLProcessor(
        Qwen2VLImageProcessor(patch_size=4, merge_size=2, min_pixels=256, max_pixels=256),
        tokenizer,
        Qwen2VLVideoProcessor(patch_size=4, merge_size=2),
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    config = Qwen2_5_VLConfig(
        text_config=TEXT,
        vision_config=dict(
            depth=2,
            hidden_size=16,
            intermediate_size=16,
            num_heads=2,
            out_hidden_size=32,
            patch_size=4,
            window_size=16,
            fullatt_block_indexes=[1],
        ),
        **{
            f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
            for name, token in zip(
                ("vision_start", "vision_end", "image", "video"), QWEN, strict=True
            )
        },
    )
    config.dtype = torch.float32
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(folder)
    return Path(folder)


def save_qwen3(folder):
    """A tiny Qwen3-VL, with its processor."""
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    tokenizer = tokenizer_of(*QWEN)
    Qwen3VLProcessor(
        Qwen2VLImageProcessor(patch_size=4, merge_size=2, min_pixels=256, max_pixels=256),
        tokenizer,
        Qwen3VLVideoProcessor(patch_size=4, merge_size=2),
        chat_template=TEMPLATE,
    ).save_pretrained(folder)
    config = Qwen3VLConfig(
        text_config=TEXT,
        vision_config=dict(
            depth=2,
            hidden_size=16,
            intermediate_size=16,
            num_heads=2,
            out_hidden_size=32,
            patch_size=4,
            num_position_embeddings=16,
            deepstack_visual_indexes=[0],
        ),
        **{
            f"{name}_token_id": tokenizer.convert_tokens_to_ids(token)
            for name, token in zip(
                ("vision_start", "vision_end", "image", "video"), QWEN, strict=True
            )
        },
    )
    config.dtype = torch.float32
    Qwen3VLForConditionalGeneration(config).save_pretrained(folder)
    return Path(folder)


def save_internvl(folder):
    """A tiny InternVL3, with its tokenizer."""
    from transformers import InternVLConfig, InternVLModel

    tokenizer = tokenizer_of("<IMG_CONTEXT>", "<img>", "</img>")
    tokenizer.save_pretrained(folder)
    text = {key: value for key, value in TEXT.items() if not key.startswith("rope")}
    config = InternVLConfig(
        text_config=dict(text, model_type="qwen2"),
        vision_config=dict(
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=[16, 16],
            patch_size=[4, 4],
        ),
        image_seq_length=4,
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
    )
    InternVLModel(config).save_pretrained(folder)
    return Path(folder)


def shrink_wan(folder):
    """Let FastWAM, whose VAE and text encoder come from the hub, have tiny ones, and read a
    tokenizer in this folder."""
    from diffusers import AutoencoderKLWan
    from lerobot.policies.fastwam import modeling_fastwam
    from lerobot.policies.fastwam.wan.adapters import WanVideoVAE38
    from lerobot.policies.fastwam.wan.components import WanTextEncoder
    from transformers import UMT5Config, UMT5EncoderModel

    def vae(*, torch_dtype, device):
        torch.manual_seed(5)
        made = AutoencoderKLWan(
            base_dim=8,
            z_dim=48,
            dim_mult=[1, 1, 1, 1],
            num_res_blocks=1,
            temperal_downsample=[False, True, True],
            latents_mean=[0.0] * 48,
            latents_std=[1.0] * 48,
            is_residual=True,
            in_channels=12,
            out_channels=12,
            patch_size=2,
            scale_factor_spatial=16,
            scale_factor_temporal=4,
        )
        return WanVideoVAE38(dtype=torch_dtype, device=device, pretrained=made.eval())

    def encoder(*, model_id, torch_dtype, device):
        torch.manual_seed(6)
        config = UMT5Config(
            vocab_size=64, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, dropout_rate=0.0
        )
        made = UMT5EncoderModel(config).eval()
        return WanTextEncoder(dtype=torch_dtype, device=device, pretrained=made)

    modeling_fastwam.load_pretrained_wan_vae = vae
    modeling_fastwam.load_pretrained_wan_text_encoder = encoder
    tokenizer_of().save_pretrained(folder)
    return Path(folder)


class Letters:
    """What pi0-FAST's policy asks of the action tokenizer, which is code on the hub."""

    min_token, scale = -60, 10.0

    def __init__(self):
        self.bpe_tokenizer = self

    def decode(self, tokens):
        return "".join(chr(int(token) % 120) for token in tokens)


def shrink_pi(kind, tokenizer):
    """Let LeRobot's pi0 and its kin, whose sizes go by name, be small, and read this tokenizer."""
    import importlib

    from lerobot.processor import tokenizer_processor

    modeling = importlib.import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    processing = importlib.import_module(f"lerobot.policies.{kind}.processor_{kind}")
    full = modeling.PaliGemmaForConditionalGenerationWithPiGemma

    def paligemma(config):
        config.text_config.vocab_size = 64
        vision = config.vision_config
        vision.hidden_size, vision.intermediate_size, vision.projection_dim = 16, 32, 32
        vision.num_hidden_layers, vision.num_attention_heads = 1, 2
        return full(config=config)

    def sizes(variant):
        return modeling.GemmaConfig(
            width=32, depth=2, mlp_dim=32, num_heads=8, num_kv_heads=1, head_dim=8
        )

    modeling.PaliGemmaForConditionalGenerationWithPiGemma = paligemma
    modeling.get_gemma_config = sizes
    if kind == "pi0_fast":  # names its tokenizers in its configuration

        class Processors:
            @staticmethod
            def from_pretrained(name, **_):
                return Letters()

        modeling.AutoProcessor = tokenizer_processor.AutoProcessor = Processors
        inner = tokenizer_processor.AutoTokenizer

        class Tokenizers:  # LeRobot does not save which one it was
            @staticmethod
            def from_pretrained(name, **_):
                return inner.from_pretrained(str(tokenizer))

        tokenizer_processor.AutoTokenizer = Tokenizers
        return
    step = processing.TokenizerProcessorStep
    processing.TokenizerProcessorStep = lambda tokenizer_name, **settings: step(
        tokenizer_name=str(tokenizer), **settings
    )


SMALL = {
    "pi05": dict(
        chunk_size=6,
        n_action_steps=4,
        max_state_dim=8,
        max_action_dim=8,
        num_inference_steps=3,
        image_resolution=(28, 28),
        tokenizer_max_length=24,
    ),
    "pi0_fast": dict(
        chunk_size=6,
        n_action_steps=4,
        max_state_dim=8,
        max_action_dim=8,
        max_decoding_steps=12,
        tokenizer_max_length=24,
        fast_skip_tokens=0,
        validate_action_token_prefix=False,
    ),
    "eo1": dict(
        chunk_size=6,
        n_action_steps=4,
        max_state_dim=8,
        max_action_dim=8,
        num_denoise_steps=3,
        image_min_pixels=256,
        image_max_pixels=256,
        dtype="float32",
    ),
    "vla_jepa": dict(
        chunk_size=6,
        n_action_steps=4,
        enable_world_model=False,
        num_embodied_action_tokens_per_instruction=2,
        num_action_tokens_per_timestep=2,
        num_inference_timesteps=3,
        action_hidden_size=32,
        action_num_layers=2,
        action_num_heads=2,
        action_attention_head_dim=16,
        num_target_vision_tokens=2,
        action_max_seq_len=64,
        torch_dtype="float32",
    ),
    "evo1": dict(
        chunk_size=6,
        n_action_steps=4,
        max_state_dim=8,
        max_action_dim=7,
        image_resolution=(16, 16),
        vlm_num_layers=2,
        vlm_dtype="float32",
        use_flash_attn=False,
        max_text_length=64,
        embed_dim=32,
        hidden_dim=32,
        state_hidden_dim=32,
        num_heads=2,
        num_layers=2,
        num_inference_timesteps=3,
    ),
    "fastwam": dict(
        action_dim=MOVES,
        proprio_dim=STATES,
        action_horizon=8,
        n_action_steps=4,
        num_video_frames=17,
        image_size=(64, 128),
        context_len=16,
        base_model_id=None,
        tokenizer_max_len=16,
        num_inference_steps=2,
        torch_dtype="float32",
        video_dit_config=dict(
            patch_size=[1, 2, 2],
            in_dim=48,
            hidden_dim=32,
            ffn_dim=32,
            freq_dim=16,
            text_dim=16,
            out_dim=48,
            num_heads=2,
            attn_head_dim=16,
            num_layers=2,
            eps=1e-6,
            seperated_timestep=True,
            video_attention_mask_mode="first_frame_causal",
            action_conditioned=False,
            action_dim=MOVES,
            action_group_causal_mask_mode="group_diagonal",
        ),
        action_dit_config=dict(
            action_dim=MOVES,
            hidden_dim=32,
            ffn_dim=32,
            num_heads=2,
            attn_head_dim=16,
            num_layers=2,
            text_dim=16,
            freq_dim=16,
            eps=1e-6,
        ),
    ),
}
"""The settings of each kind."""


def backbone_of(kind, folder):
    """The settings that name what a policy of this kind takes from the hub, made in a folder."""
    if kind == "eo1":
        return {"vlm_base": str(save_qwen25(folder))}
    if kind == "vla_jepa":
        return {"qwen_model_name": str(save_qwen3(folder))}
    if kind == "evo1":
        return {"vlm_model_name": str(save_internvl(folder))}
    if kind == "fastwam":
        return {"tokenizer_model_id": str(shrink_wan(folder))}
    if kind in ("pi05", "pi0_fast"):
        # As many words as the small model knows tokens, for it may answer with any.
        tokenizer_of(*(f"<loc{i}>" for i in range(62 - len(WORDS)))).save_pretrained(folder)
        shrink_pi(kind, folder)
        return {"text_tokenizer_name": str(folder)} if kind == "pi0_fast" else {}
    return {}
