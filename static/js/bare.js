// Entry point of pages without the frame.
import { startTheme } from "./theme.js";
import { startZone } from "./zone.js";

startZone();
startTheme();
