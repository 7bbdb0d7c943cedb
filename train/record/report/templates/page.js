for (const svg of document.querySelectorAll("svg[data-chart]")) showNumbersOf(svg);
const unfoldTarget = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let fold = target; fold; fold = fold.parentElement) if (fold.tagName === "DETAILS") fold.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("hashchange", unfoldTarget);
unfoldTarget();
const button = document.getElementById("unfold");
if (button) button.addEventListener("click", () => {
  const all = [...document.querySelectorAll("details.trajectory")], open = all.some((d) => !d.open);
  for (const d of all) d.open = open;
  button.textContent = open ? "fold all" : "unfold all";
});
