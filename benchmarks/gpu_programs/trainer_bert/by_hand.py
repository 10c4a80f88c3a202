"""The BERT of plain.py, tuned by hand with the Trainer's own arguments, and loader workers."""

import tempfile

import plain
import torch
from plain import StepTimer, SyntheticReviews, Timing
from transformers import BertForSequenceClassification, Trainer, TrainingArguments


def main():
    args = plain.parse_args()
    on_gpu = torch.cuda.is_available()
    torch.manual_seed(0)
    config = plain.make_config(args.small)
    model = BertForSequenceClassification(config)
    tuned = {
        "bf16": True,
        "tf32": True,
        "torch_compile": True,
        "optim": "adamw_torch_fused",
        "dataloader_num_workers": 4,
        "dataloader_persistent_workers": True,
        "dataloader_prefetch_factor": 4,
    }
    training_args = TrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=4 if args.small else 64,
        max_steps=args.steps,
        logging_steps=args.log_every,
        logging_nan_inf_filter=False,  # it waits for the device at every step
        disable_tqdm=True,
        save_strategy="no",
        report_to="none",
        **(tuned if on_gpu else {}),
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
