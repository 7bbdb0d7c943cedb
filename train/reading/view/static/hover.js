"use strict";
globalThis.showNumbersOf = (svg) => {
  const tip = document.getElementById("tip");
  const data = JSON.parse(svg.dataset.chart), cross = svg.querySelector(".cross");
  for (const kind of ["pointermove", "pointerdown"]) svg.addEventListener(kind, (event) => {
    const box = svg.getBoundingClientRect();
    const at = (event.clientX - box.left) * svg.viewBox.baseVal.width / box.width;
    let best = 0;
    data.x.forEach((x, i) => { if (Math.abs(x - at) < Math.abs(data.x[best] - at)) best = i; });
    cross.setAttribute("x1", data.x[best]);
    cross.setAttribute("x2", data.x[best]);
    cross.style.visibility = "visible";
    tip.replaceChildren();
    const head = tip.appendChild(document.createElement("div"));
    head.className = "head";
    head.textContent = data.head[best];
    for (const row of data.rows) {
      if (!row.values[best]) continue;
      const line = tip.appendChild(document.createElement("div"));
      line.appendChild(document.createElement("b")).style.background = `var(--c${row.color})`;
      line.append(`${row.label} ${row.values[best]}`);
    }
    tip.style.display = "block";
    const left = event.clientX + 16 + tip.offsetWidth > innerWidth
      ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${event.clientY + 14}px`;
  });
  svg.addEventListener("pointerleave", () => {
    tip.style.display = "none";
    cross.style.visibility = "hidden";
  });
};
