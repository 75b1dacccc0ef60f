// The package's default export is lost between its CommonJS form and Grafana's modules.
export { Scrollbars, Scrollbars as default } from "./node_modules/react-custom-scrollbars-2/lib/index.js";
