import "./style/fonts.css";
import "./style/base.css";
import "./style/shell.css";
import "./style/run.css";
import "./style/views.css";
import "./style/sandbox.css";
import { render } from "preact";
import { watchServer } from "./api/connection";
import { redeemCode } from "./api/token";
import { readRoute } from "./ui/router";
import { Shell } from "./ui/shell";

// The code goes out of the address before anything reads the address, and the first request has the token.
await redeemCode();
readRoute();
watchServer();
render(<Shell />, document.getElementById("page")!);
