"""Small LeRobot policies with random weights, saved as LeRobot saves them. Needs LeRobot."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.factory import get_policy_class, make_policy_config, make_pre_post_processors

from support import lerobot_vision as vision

SAC = "sac" if "sac" in PreTrainedConfig.get_known_choices() else "gaussian_actor"
"""Of one kind, but renamed in LeRobot 0.6."""
SIZE, STATES, MOVES = 64, 5, 3
CAMERAS = ("observation.images.image", "observation.images.wrist_image")


def save(kind, folder, *, size=SIZE, states=STATES, moves=MOVES, cameras=CAMERAS, **settings):
    """Make a policy of this kind and save it with its processors."""
    torch.manual_seed(1)
    image = PolicyFeature(type=FeatureType.VISUAL, shape=(3, size, size))
    config = make_policy_config(
        kind,
        input_features={
            **dict.fromkeys(cameras, image),
            "observation.state": PolicyFeature(type=FeatureType.STATE, shape=(states,)),
        },
        output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(moves,))},
        device="cpu",
        push_to_hub=False,
        **{**(SMALL | vision.SMALL).get(kind, {}), **settings},
    )
    policy = get_policy_class(kind)(config).eval()
    if kind == "xvla":  # leaves some to whatever was in memory
        for parameter in policy.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.2)
    policy.save_pretrained(folder)
    before, after = make_pre_post_processors(config, dataset_stats=_stats(cameras, states, moves))
    before.save_pretrained(folder)
    after.save_pretrained(folder)
    return Path(folder)


SMALL = {
    "act": dict(
        chunk_size=6,
        n_action_steps=4,
        dim_model=32,
        n_heads=2,
        dim_feedforward=64,
        n_encoder_layers=1,
        n_vae_encoder_layers=1,
        pretrained_backbone_weights=None,
    ),
    "diffusion": dict(
        n_obs_steps=2,
        horizon=8,
        n_action_steps=4,
        down_dims=(16, 32),
        diffusion_step_embed_dim=16,
        spatial_softmax_num_keypoints=4,
        num_train_timesteps=6,
        crop_shape=None,
        use_group_norm=True,
        pretrained_backbone_weights=None,
    ),
    "vqbet": dict(
        n_obs_steps=3,
        action_chunk_size=4,
        n_action_pred_token=2,
        gpt_block_size=64,
        gpt_input_dim=32,
        gpt_output_dim=32,
        gpt_n_layer=1,
        gpt_n_head=2,
        gpt_hidden_dim=32,
        vqvae_n_embed=4,
        vqvae_embedding_dim=16,
        vqvae_enc_hidden_dim=16,
        crop_shape=None,
        spatial_softmax_num_keypoints=4,
        pretrained_backbone_weights=None,
    ),
    "tdmpc": dict(
        n_action_repeats=2,
        horizon=3,
        latent_dim=8,
        mlp_dim=16,
        image_encoder_hidden_dim=8,
        state_encoder_hidden_dim=8,
        cem_iterations=2,
        n_gaussian_samples=12,
        n_pi_samples=4,
        n_elites=5,
    ),
    SAC: dict(
        image_encoder_hidden_dim=8,
        latent_dim=16,
        state_encoder_hidden_dim=16,
        **({"use_torch_compile": False} if SAC == "sac" else {}),
    ),
    "pi0": dict(
        chunk_size=6,
        n_action_steps=4,
        max_state_dim=8,
        max_action_dim=8,
        num_inference_steps=3,
        image_resolution=(28, 28),
        tokenizer_max_length=8,
    ),
    "multi_task_dit": dict(
        n_obs_steps=2,
        horizon=8,
        n_action_steps=4,
        num_train_timesteps=6,
        hidden_dim=16,
        num_layers=1,
        num_heads=2,
        timestep_embed_dim=8,
        image_crop_shape=None,
        tokenizer_max_length=8,
    ),
    "xvla": dict(
        chunk_size=6,
        n_action_steps=4,
        action_mode="auto",
        max_state_dim=8,
        max_action_dim=6,
        hidden_size=32,
        depth=1,
        num_heads=2,
        num_domains=2,
        len_soft_prompts=2,
        dim_time=8,
        max_len_seq=64,
        num_denoising_steps=3,
        tokenizer_max_length=8,
        florence_config=dict(
            vocab_size=32,
            projection_dim=32,
            text_config=dict(
                vocab_size=32,
                d_model=32,
                encoder_layers=1,
                encoder_ffn_dim=32,
                encoder_attention_heads=2,
                decoder_layers=1,
                decoder_ffn_dim=32,
                decoder_attention_heads=2,
                max_position_embeddings=64,
            ),
            vision_config=dict(
                dim_embed=[8, 16, 16, 32],
                num_heads=[1, 2, 2, 2],
                num_groups=[1, 2, 2, 2],
                depths=[1, 1, 1, 1],
                window_size=2,
                projection_dim=32,
                visual_temporal_embedding=dict(type="COSINE", max_temporal_embeddings=4),
                image_pos_embed=dict(type="learned_abs_2d", max_pos_embeddings=8),
                image_feature_source=["spatial_avg_pool", "temporal_avg_pool"],
            ),
        ),
    ),
    "smolvla": dict(
        chunk_size=6,
        n_action_steps=4,
        max_state_dim=8,
        max_action_dim=8,
        resize_imgs_with_padding=(32, 32),
        num_steps=3,
        num_vlm_layers=2,
        expert_width_multiplier=0.5,
        tokenizer_max_length=8,
        load_vlm_weights=False,
    ),
}


def _stats(cameras, states, moves):
    generator = torch.Generator().manual_seed(3)

    def stats(shape):
        low = torch.randn(shape, generator=generator)
        return {
            "mean": low + 0.5,
            "std": torch.rand(shape, generator=generator) + 0.5,
            "min": low - 1,
            "max": low + 2,
            "q01": low - 1,
            "q99": low + 2,
        }

    return {
        "observation.state": stats((states,)),
        "action": stats((moves,)),
        **{camera: stats((3, 1, 1)) for camera in cameras},
    }


def save_backbone(folder):
    """A tiny SmolVLM: its configuration, and a tokenizer and processor that need no network."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        GPT2TokenizerFast,
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
        SmolVLMVideoProcessor,
    )

    special = ["<pad>", "<unk>", "<image>", "<fake_token_around_image>", "<global-img>"]
    special += ["<end_of_utterance>"]
    words = ["push", "the", "puck", "turn", "on", "stove", "\n"]
    table = {word: i for i, word in enumerate(special + words)}
    core = Tokenizer(models.WordLevel(table, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = GPT2TokenizerFast(
        tokenizer_object=core,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<end_of_utterance>",
        bos_token="<pad>",
        extra_special_tokens=dict(
            image_token="<image>",
            fake_image_token="<fake_token_around_image>",
            global_image_token="<global-img>",
            end_of_utterance_token="<end_of_utterance>",
        ),
    )
    processor = SmolVLMProcessor(
        image_processor=SmolVLMImageProcessor(),
        video_processor=SmolVLMVideoProcessor(),
        tokenizer=tokenizer,
        image_seq_len=4,
    )
    processor.save_pretrained(folder)
    config = SmolVLMConfig(
        text_config=dict(
            model_type="llama",
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            head_dim=16,
            vocab_size=len(table),
            pad_token_id=0,
        ),
        vision_config=dict(
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            image_size=32,
            patch_size=8,
        ),
        scale_factor=2,
        image_token_id=2,
        pad_token_id=0,
    )
    config.save_pretrained(folder)
    return Path(folder)


def save_clip(folder):
    """A tiny CLIP with the tokenizer of `save_backbone`."""
    from transformers import CLIPConfig, CLIPModel

    save_backbone(folder)
    small = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = CLIPConfig(
        text_config=dict(small, vocab_size=32, max_position_embeddings=8, eos_token_id=5),
        vision_config=dict(small, image_size=SIZE, patch_size=16),
        projection_dim=16,
    )
    CLIPModel(config).save_pretrained(folder)
    return Path(folder)


def edit(folder, **changes):
    """Change a saved configuration."""
    file = Path(folder) / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
