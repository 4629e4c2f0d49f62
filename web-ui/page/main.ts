import "./style/page.css";
import { mount } from "svelte";
import { overHttp as api } from "./api/client";
import App from "./shell/App.svelte";
import { openFeed } from "./feed/open";
import { overHttp as session } from "./api/session";

const target = document.getElementById("page");
if (target === null) throw new Error("index.html has no #page");
mount(App, { target, props: { open: openFeed, api: api(), session: session() } });
