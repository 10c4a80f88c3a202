"""Fine-tune BERT-base as a classifier with the Hugging Face Trainer and its defaults."""

import argparse
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

sys.path.append(str(Path(__file__).resolve().parents[1]))
from step_timer import StepTimer

MAX_LENGTH = 128


class SyntheticReviews(Dataset):
    """Token ids as a tokenizer with `padding="max_length"` gives them."""

    def __init__(self, length, vocab_size):
        generator = torch.Generator().manual_seed(0)
        self.input_ids = torch.randint(
            1000 % vocab_size, vocab_size, (length, MAX_LENGTH), generator=generator
        )
        lengths = torch.randint(MAX_LENGTH // 2, MAX_LENGTH + 1, (length,), generator=generator)
        self.attention_mask = (torch.arange(MAX_LENGTH) < lengths[:, None]).long()
        self.input_ids *= self.attention_mask
        self.labels = torch.randint(0, 2, (length,), generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {
            "input_ids": self.input_ids[index],
            "attention_mask": self.attention_mask[index],
            "labels": self.labels[index],
        }


class Timing(TrainerCallback):
    def __init__(self, timer):
        self.timer = timer

    def on_step_end(self, args, state, control, **kwargs):
        self.timer.tick()


def make_config(small):
    if small:
        return BertConfig(
            vocab_size=512,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            num_labels=2,
        )
    return BertConfig(num_labels=2)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--small", action="store_true", help="a tiny model, for a smoke test")
    parser.add_argument("--time", action="store_true", help="print milliseconds a step at the end")
    parser.add_argument("--log-every", type=int, default=50)
    return parser.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(0)
    config = make_config(args.small)
    model = BertForSequenceClassification(config)
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4 if args.small else 64,
        max_steps=args.steps,
        logging_steps=args.log_every,
        save_strategy="no",
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=SyntheticReviews(6400, config.vocab_size),
        callbacks=[Timing(StepTimer(args.steps, args.time))],
    )
    trainer.train()


if __name__ == "__main__":
    main()
