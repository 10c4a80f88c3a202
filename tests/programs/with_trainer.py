"""Hugging Face's Trainer, two batches a step, a tiny language model."""

import sys
import tempfile

import torch
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    PrinterCallback,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)
from transformers.utils import logging
from truth import Truth

logging.set_verbosity_error()
torch.manual_seed(0)
truth = Truth()
ids = torch.randint(0, 64, (64, 6))
texts = [{"input_ids": row, "labels": row} for row in ids]
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2))


class Counting(Trainer):
    def compute_loss(self, model: object, inputs: dict[str, Tensor], *args: object, **more: object):
        truth.forward(len(inputs["input_ids"]))
        return super().compute_loss(model, inputs, *args, **more)

    def training_step(self, *args: object, **more: object) -> Tensor:
        loss = super().training_step(*args, **more)
        truth.backward(loss)
        return loss


class Steps(TrainerCallback):
    def on_step_end(self, *_: object, **__: object) -> None:
        truth.step()


with tempfile.TemporaryDirectory() as folder:
    trainer = Counting(
        model=model,
        args=TrainingArguments(
            output_dir=folder, max_steps=20, per_device_train_batch_size=4, report_to=[],
            gradient_accumulation_steps=2, save_strategy="no", logging_strategy="no",
            disable_tqdm=True, use_cpu=True, seed=0,
            optim="adafactor" if "adafactor" in sys.argv else "adamw_torch",
        ),
        train_dataset=texts,
        callbacks=[Steps()],
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # it prints seconds
    trainer.train()
truth.tell(tokens=48)
