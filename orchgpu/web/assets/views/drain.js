// Drain and undrain, asked for in the fleet and in the settings.
import { post } from "../core/api.js";
import { attempt } from "../core/notices.js";

export function drainQuestion(target, drained, onDone) {
  const act = async () => {
    const done = drained ? `${target} takes leases again.` : `${target} takes no new lease.`;
    if (await attempt(() => post(drained ? "/undrain" : "/drain", { target }), done)) onDone();
  };
  return drained
    ? { title: `Undrain ${target}?`, text: "It takes new leases again.", action: "Undrain", act }
    : {
        title: `Drain ${target}?`,
        text: "Running leases end as usual; no new lease is placed there until it is undrained.",
        action: "Drain",
        act,
      };
}
