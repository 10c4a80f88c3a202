// Begins the page: hands each figure to the module that draws its kind, and makes tables handy.

import { drawCurves } from "./curves";
import { linkFindings } from "./links";
import { drawSource } from "./source";
import { drawIcicle } from "./icicle";
import { drawRoofline } from "./roofline";
import { drawSamples, tipsOfPictures } from "./samples";
import { makeHandy } from "./tables";
import { drawTimeline } from "./timeline";
import { hideTip, showTip } from "./tip";

type Draw = (stage: HTMLElement, data: any) => void;

const DRAW: Record<string, Draw> = {
  CurvesPlot: drawCurves,
  Source: drawSource,
  Timeline: drawTimeline,
  IciclePlot: drawIcicle,
  RooflinePlot: drawRoofline,
  SamplesChart: drawSamples,
};

function begin(): void {
  for (const figure of document.querySelectorAll<HTMLElement>("figure[data-view]")) {
    const stage = figure.querySelector<HTMLElement>(".stage");
    const data = figure.querySelector("script[type='application/json']");
    const draw = DRAW[figure.dataset.view ?? ""];
    if (!stage || !data || !draw) continue;
    try {
      draw(stage, JSON.parse(data.textContent ?? "null"));
    } catch (error) {
      stage.textContent = `This figure could not be drawn: ${error}`;
    }
  }
  document.querySelectorAll<HTMLTableElement>("table").forEach(makeHandy);
  linkFindings();
  tipsOfPictures(showTip, hideTip);
}

if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
else begin();
