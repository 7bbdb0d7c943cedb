// A long list of which only what is seen is in the document.

const AROUND = 800; // pixels beyond the box that are there too

export class LongList {
  // box: an element that scrolls. render(i) makes the element of an item. `height` is every item's own, or
  // with `varies` what one is thought to have until it was seen.
  constructor(box, { count, height, render, varies = false }) {
    this.box = box;
    this.height = height;
    this.varies = varies;
    this.render = render;
    this.shown = new Map();
    this.space = box.appendChild(document.createElement("div"));
    this.space.className = "space";
    this.space.setAttribute("role", "presentation");
    this.sizes = new ResizeObserver((entries) => this.measured(entries.map((one) => one.target)));
    this.onscroll = () => this.draw();
    box.addEventListener("scroll", this.onscroll, { passive: true });
    this.outer = new ResizeObserver(() => this.draw());
    this.outer.observe(box);
    this.resize(count);
  }

  resize(count) {
    this.count = count;
    if (this.varies) {
      const heights = new Float64Array(count).fill(this.height);
      if (this.heights) heights.set(this.heights.subarray(0, count));
      this.heights = heights;
      this.sum();
    }
    this.refresh();
  }

  refresh() {
    for (const element of this.shown.values()) this.drop(element);
    this.shown.clear();
    this.space.style.height = `${this.top(this.count)}px`;
    this.draw();
  }

  sum() {
    this.tops = new Float64Array(this.count + 1);
    for (let i = 0; i < this.count; i++) this.tops[i + 1] = this.tops[i] + this.heights[i];
  }

  top(i) {
    return this.varies ? this.tops[i] : i * this.height;
  }

  at(y) {
    if (!this.varies) return Math.max(0, Math.min(this.count - 1, Math.floor(y / this.height)));
    let low = 0, high = this.count - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= y) low = middle; else high = middle - 1;
    }
    return low;
  }

  draw() {
    if (!this.count) return;
    const y = this.box.scrollTop, first = this.at(y - AROUND), last = this.at(y + this.box.clientHeight + AROUND);
    for (const [i, element] of this.shown) {
      if (i < first || i > last) {
        this.drop(element);
        this.shown.delete(i);
      }
    }
    for (let i = first; i <= last; i++) {
      if (this.shown.has(i)) continue;
      const element = this.render(i);
      element.dataset.item = i;
      element.classList.add("item");
      element.style.transform = `translateY(${this.top(i)}px)`;
      this.shown.set(i, element);
      this.insert(i, element);
      if (this.varies) this.sizes.observe(element);
    }
  }

  // In the order of the items, so that the keyboard and a screen reader go through them in order.
  insert(i, element) {
    let next = null;
    for (const other of this.space.children) if (Number(other.dataset.item) > i) { next = other; break; }
    this.space.insertBefore(element, next);
  }

  drop(element) {
    this.sizes.unobserve(element);
    element.remove();
  }

  measured(elements) {
    let above = 0, changed = false;
    for (const element of elements) {
      const i = Number(element.dataset.item), height = element.offsetHeight;
      if (!element.isConnected || !height || Math.abs(height - this.heights[i]) < 0.5) continue;
      if (this.tops[i + 1] <= this.box.scrollTop) above += height - this.heights[i];
      this.heights[i] = height;
      changed = true;
    }
    if (!changed) return;
    this.sum();
    this.space.style.height = `${this.tops[this.count]}px`;
    for (const [i, element] of this.shown) element.style.transform = `translateY(${this.tops[i]}px)`;
    if (above) this.box.scrollTop += above;
    this.draw();
  }

  show(i) {
    const top = this.top(i), end = this.top(i + 1);
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (end > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = end - this.box.clientHeight;
    this.draw();
  }

  begin(i) {
    this.box.scrollTop = this.top(i);
    this.draw();
  }

  end() {
    this.sizes.disconnect();
    this.outer.disconnect();
    this.box.removeEventListener("scroll", this.onscroll);
    this.space.remove();
  }
}
