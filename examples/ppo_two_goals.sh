#!/bin/sh
# Demonstrations, a clone of them, and PPO on what that clone does.
# TwoGoals has a camera and a prompt; see two_goals.py. Run here: sh ppo_two_goals.sh FOLDER
set -e
out=${1:-runs/ppo}

hocket collect --env two_goals:TwoGoals --policy two_goals:Expert --episodes 20 --to run "$out/shown"

hocket train --env two_goals:TwoGoals --policy torch:two_goals:TinyVLA --algo bc \
    --data "$out/shown" --steps 3200 --std 0.3 --eval-every 3200 --eval-episodes 40 \
    --out "$out/cloned"

hocket train --env two_goals:TwoGoals --policy "$out/cloned/best" \
    --policy.network torch:two_goals:TinyVLA --algo ppo --lr 3e-3 --batch 16 \
    --steps 4000 --eval-every 2000 --eval-episodes 40 --out "$out/improved"

hocket eval --env two_goals:TwoGoals --policy "$out/improved/best" \
    --out "$out/evaluated" \
    --policy.network torch:two_goals:TinyVLA --episodes 50 --seed 1000
