#!/bin/sh
# Five demonstrations, and an expert that takes over where the policy has come to (DAgger).
# TwoGoals has a camera and a prompt; see two_goals.py. Run here: sh correct_two_goals.sh FOLDER
set -e
out=${1:-runs/correct}

hocket collect --env two_goals:TwoGoals --policy two_goals:Expert --episodes 5 --to run --lanes 1 "$out/shown"

hocket train --env two_goals:TwoGoals --policy torch:two_goals:TinyVLA \
    --algo dagger --expert two_goals:Expert --data "$out/shown" \
    --steps 6400 --rounds 3 --batch 20 --std 0.3 --lanes 1 \
    --eval-every 6400 --eval-episodes 40 --out "$out/corrected"

# Who acted is kept of every step: in a LeRobotDataset it is the column `intervention`.
hocket export "$out/corrected/corrections/0" --to lerobot --out "$out/dataset" --fps 10 --no-images

hocket eval --env two_goals:TwoGoals --policy "$out/corrected/best" \
    --out "$out/evaluated" \
    --policy.network torch:two_goals:TinyVLA --episodes 50 --seed 1000 --lanes 1
