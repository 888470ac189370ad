// Entry of the pages without the frame.
import { startTheme } from "./theme.js";

startTheme();
