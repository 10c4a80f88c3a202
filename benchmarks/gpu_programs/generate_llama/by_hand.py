"""The Llama of plain.py, tuned by hand: bfloat16 weights, a static cache, and decoding compiled by
`generate` itself, with CUDA graphs."""

import plain
import torch
from plain import StepTimer


def main():
    args = plain.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = plain.make_config(args.small)
    model = plain.build(config, device)
    tuned = {}
    if device == "cuda":
        model = model.to(torch.bfloat16)
        tuned = {"cache_implementation": "static"}  # generate compiles the decoding step then
    prompts = torch.Generator().manual_seed(0)
    timer = StepTimer(args.steps, args.time)

    for step in range(args.steps):
        shape = (args.batch_size, args.prompt)
        input_ids = torch.randint(0, config.vocab_size, shape, generator=prompts).to(device)
        output = model.generate(
            input_ids,
            attention_mask=torch.ones_like(input_ids),
            max_new_tokens=args.new_tokens,
            do_sample=False,
            **tuned,
        )
        answer = output[:, args.prompt :]
        if step % args.log_every == 0:
            print(f"request {step}: {answer.shape[1]} tokens, checksum {answer.sum().item()}")
        timer.tick()


if __name__ == "__main__":
    main()
