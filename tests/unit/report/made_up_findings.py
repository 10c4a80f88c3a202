"""Findings as the rules would draw them of a program that waits for its loader; and nasty ones."""

from ridgeline.records.facts import because
from ridgeline.records.finding import (
    Answer,
    AnswerCode,
    Evidence,
    Finding,
    Findings,
    Question,
    UnaskedRule,
)
from ridgeline.report.views.rule import RulePage

LOADER = Finding(
    rule="loader-starves",
    family="input",
    id="loader-starves:data.py:decode",
    claim="The DataLoader cannot feed the GPU: `decode()` takes 11 ms a sample, 0 workers",
    share_pct=60.0,
    gain_bound=2.5,
    confidence="high",
    file="data.py",
    line=41,
    function="decode",
    evidence=(
        Evidence(what="input wait", text="93 ms, 61 % of the step", value=93.0),
        Evidence(what="workers", text="num_workers=0", source="read"),
    ),
    change="loader = DataLoader(data, num_workers=8, pin_memory=True,\n"
    "                    persistent_workers=True)",
    docs="docs/rules/loader-starves.md",
    doubt="the disk may be as slow",
)
PRECISION = Finding(
    rule="fp32-products", family="precision", claim="fp32 matrix products: TF32 is off.",
    share_pct=22.0, gain_bound=1.2821, file="models/model.py", line=88,
    change='torch.set_float32_matmul_precision("high")', after="loader-starves",
)  # fmt: skip
ITEM = Finding(
    rule="item-in-loop", family="synchronisation",
    claim="`.item()` makes the host wait for the GPU twice a step", share_pct=4.0,
    gain_bound=1.0417, file="train.py", line=71, confidence="low", shares_with="loader-starves",
    change="losses.append(loss.detach())",
)  # fmt: skip
MEMORY = Finding(
    rule="kept-activations", family="memory", claim="activations are kept in fp32",
    memory_pct=31.4, module="GPT / Block_3 / Attention_3",
)  # fmt: skip
SMALL = Finding(rule="unfused-optimizer", family="kernels", claim="small", share_pct=1.2)
READ = Finding(rule="no-pin", family="transfer", claim="read", confidence="unmeasured")


def findings() -> Findings:
    return Findings(
        findings=(LOADER, PRECISION, ITEM, MEMORY, SMALL, READ),
        answers=(
            Answer(
                question=Question.BUSY,
                clauses=(
                    because(AnswerCode.GPU_WORKS, busy=False, share=0.3, step_s=0.152),
                    because(AnswerCode.WAITS_FOR),
                    because(AnswerCode.PART, first=True, part="data", share=0.61),
                    because(AnswerCode.END),
                ),
            ),
            Answer(
                question=Question.PEAK,
                clauses=(because(AnswerCode.NOT_KNOWN, cause=because(AnswerCode.NO_MEMORY)),),
            ),
        ),
        ceiling_pct=11.0,
        ceiling="bfloat16 peak (datasheet)",
        remains="waiting for data 61 %, arithmetic 25 %",
        unlooked=(
            UnaskedRule("slow-kernel", ("shapes",)),
            UnaskedRule("far-rank", ("ranks",)),
            UnaskedRule("far-copy", ("gpu", "shapes")),
        ),
    )


def nothing() -> Findings:
    return Findings(
        findings=(SMALL,),
        ceiling_pct=71.23,
        ceiling="bfloat16 peak (datasheet)",
        remains="arithmetic 61 % (most of it matmul), memory traffic 25 %",
        unlooked=findings().unlooked,
    )


def nasty(text: str) -> Findings:
    return Findings(
        findings=(
            Finding(
                rule=text, claim=text, share_pct=50.0, gain_bound=2.0, file=text, line=1,
                function=text, module=text, change=text, doubt=text, after=text,
                evidence=(Evidence(what=text, text=text),),
            ),
        ),
        answers=(
            Answer(question=Question.PEAK, clauses=(because(AnswerCode.IN_TEXT, text=text),)),
        ),
        remains=text, ceiling=text, ceiling_pct=1.0, unlooked=(UnaskedRule(text, (text,)),),
    )  # fmt: skip


def pages() -> tuple[RulePage, ...]:
    return (
        RulePage(
            id="loader-starves", family="input", title="The loader cannot feed the device",
            looks_at="The input wait of untraced steps.", threshold="3 % of the step.",
            why="The device idles while Python decodes.\n\nA second paragraph.",
            fix="Use workers:\n\n```python\nloader = DataLoader(data,\n    num_workers=8)\n```\n\n"
            "- as many as there are cores\n- and `pin_memory`",
            wrong_when="The disk is the limit.", needs=("timed",),
        ),
        RulePage(
            id="item-in-loop", family="synchronisation", title="The host waits | for a number",
            looks_at="x", threshold="x", why="x", fix="x", wrong_when="x",
        ),
    )  # fmt: skip
