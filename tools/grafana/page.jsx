// Draws one dashboard with Grafana's own components (see tools/grafana-pictures).
//
// `window.draw({dashboard, answers, from_s, to_s, caption})`: `answers` has the results of Prometheus'
// query API, by panel id, one list of series per target.
import React from "react";
import { createRoot } from "react-dom/client";
import { firstValueFrom } from "rxjs";
import {
  applyFieldOverrides, createTheme, dateTime, FieldType, getDisplayProcessor, LoadingState, standardFieldConfigEditorRegistry,
  standardTransformers, standardTransformersRegistry, ThemeContext, toDataFrame, transformDataFrame,
} from "@grafana/data";
import {
  BigValue, BigValueColorMode, BigValueGraphMode, GlobalStyles, PanelChrome, Table, TimeSeries,
} from "@grafana/ui";

const transformers = new Map(Object.values(standardTransformers).filter((one) => one?.id).map((one) => [one.id, one]));
standardTransformersRegistry.setInit(() => [...transformers.values()].map((one) => ({ id: one.id, name: one.name, transformation: one, editor: () => null })));
// Editors belong to Grafana itself; a panel's configuration is put on its fields below instead.
standardFieldConfigEditorRegistry.setInit(() => []);

const COLUMN = 50, LINE = 38, GAP = 8, HEADER = 44;
const theme = createTheme({ colors: { mode: "light" } });

function legend(pattern, labels) {
  if (pattern && pattern !== "__auto") return pattern.replace(/\{\{(\w+)\}\}/g, (_, label) => labels[label] ?? "");
  return Object.entries(labels).filter(([k]) => k !== "__name__").map(([, v]) => v).join(", ") || "Value";
}

const numbers = (values) => values.map((text) => (Number.isFinite(Number(text)) ? Number(text) : null));

function seriesFrames(panel, answers) {
  return panel.targets.flatMap((target, n) => answers[n].map((series) => {
    const pairs = series.values ?? [series.value];
    const name = legend(target.legendFormat, series.metric);
    return toDataFrame({ refId: target.refId, name, fields: [
      { name: "Time", type: FieldType.time, values: pairs.map(([at]) => at * 1000) },
      { name: "Value", type: FieldType.number, labels: series.metric, values: numbers(pairs.map(([, v]) => v)), config: { displayNameFromDS: name } },
    ] });
  }));
}

function tableFrames(panel, answers) {
  return panel.targets.map((target, n) => {
    const rows = answers[n];
    const labels = [...new Set(rows.flatMap((row) => Object.keys(row.metric)))].filter((l) => l !== "__name__").sort();
    const value = panel.targets.length > 1 ? `Value #${target.refId}` : "Value";
    return toDataFrame({ refId: target.refId, fields: [
      { name: "Time", type: FieldType.time, values: rows.map((row) => row.value[0] * 1000) },
      ...labels.map((label) => ({ name: label, type: FieldType.string, values: rows.map((row) => row.metric[label] ?? "") })),
      { name: value, type: FieldType.number, values: numbers(rows.map((row) => row.value[1])) },
    ] });
  });
}

async function framesOf(panel, answers) {
  let frames = panel.type === "table" ? tableFrames(panel, answers) : seriesFrames(panel, answers);
  if (panel.type === "table") frames = await firstValueFrom(transformDataFrame(panel.transformations, frames, { interpolate: (text) => text }));
  const { defaults, overrides } = panel.fieldConfig;
  for (const field of frames.flatMap((frame) => frame.fields)) {
    const own = overrides.find((one) => one.matcher.options === (field.config.displayName ?? field.name))?.properties ?? [];
    const width = own.find(({ id }) => id === "custom.width")?.value;
    if (field.type === FieldType.string) field.config = { ...field.config, custom: { ...defaults.custom, ...(width && { width }) } };
    if (field.type !== FieldType.number) continue;
    field.config = { ...defaults, ...field.config, ...Object.fromEntries(own.map(({ id, value }) => [id, value])) };
  }
  return applyFieldOverrides({ data: frames, fieldConfig: { defaults: {}, overrides: [] }, replaceVariables: (text) => text, theme, timeZone: "utc",
    fieldConfigRegistry: standardFieldConfigEditorRegistry });
}

function Content({ panel, frames, range, width, height }) {
  if (!frames.length || !frames.some((frame) => frame.length)) return <div style={{ textAlign: "center", paddingTop: height / 2 - 10 }}>{panel.fieldConfig.defaults.noValue ?? "No data"}</div>;
  if (panel.type === "timeseries") {
    const { legend } = panel.options;
    return <TimeSeries frames={frames} timeRange={range} timeZone="utc" width={width} height={height} legend={legend} options={panel.options} structureRev={1} />;
  }
  if (panel.type === "table") return <Table data={frames[0]} width={width} height={height} />;
  const field = frames[0].fields.find((one) => one.type === FieldType.number);
  const shown = (field.display ?? getDisplayProcessor({ field, theme }))(field.values[field.values.length - 1]);
  if (panel.options.textMode === "name") { shown.text = frames[0].name; shown.prefix = shown.suffix = ""; }
  return <BigValue theme={theme} width={width} height={height} value={shown} colorMode={BigValueColorMode.Value} graphMode={BigValueGraphMode.None} />;
}

function Panel({ panel, frames, range }) {
  const box = panel.gridPos;
  const at = { position: "absolute", left: box.x * COLUMN, top: HEADER + box.y * LINE };
  if (panel.type === "row") return <h4 style={{ ...at, margin: 8 }}>{panel.title}</h4>;
  return <div style={at}>
    <PanelChrome title={panel.title} description={panel.description} width={box.w * COLUMN - GAP} height={box.h * LINE - GAP} loadingState={LoadingState.Done}>
      {(width, height) => <Content panel={panel} frames={frames} range={range} width={width} height={height} />}
    </PanelChrome>
  </div>;
}

window.draw = async ({ dashboard, answers, from_s, to_s, caption }) => {
  const from = dateTime(from_s * 1000), to = dateTime(to_s * 1000);
  const range = { from, to, raw: { from, to } };
  const panels = await Promise.all(dashboard.panels.map(async (panel) => ({ panel, frames: panel.type === "row" ? [] : await framesOf(panel, answers[panel.id]) })));
  const bottom = Math.max(...dashboard.panels.map((p) => p.gridPos.y + p.gridPos.h));
  const page = <ThemeContext.Provider value={theme}>
    <GlobalStyles />
    <div id="page" style={{ position: "relative", width: 24 * COLUMN, height: HEADER + bottom * LINE + GAP, background: theme.colors.background.canvas }}>
      <h3 style={{ margin: 0, padding: "10px 8px" }}>{dashboard.title} <small style={{ color: theme.colors.text.secondary }}>{caption}</small></h3>
      {panels.map(({ panel, frames }) => <Panel key={panel.id} panel={panel} frames={frames} range={range} />)}
    </div>
  </ThemeContext.Provider>;
  createRoot(document.getElementById("root")).render(page);
};
