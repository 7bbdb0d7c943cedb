// Long lists of which only what is near the window is in the document.

const AROUND = 800; // pixels beyond the window, or the box, that are there too

// Rows of one height in a box that scrolls.
export class LongList {
  constructor(box, { count, height, render }) {
    this.box = box;
    this.height = height;
    this.render = render;
    this.shown = new Map();
    this.space = box.appendChild(document.createElement("div"));
    this.space.className = "space";
    this.space.setAttribute("role", "presentation");
    this.onscroll = () => this.draw();
    box.addEventListener("scroll", this.onscroll, { passive: true });
    this.outer = new ResizeObserver(() => this.draw());
    this.outer.observe(box);
    this.resize(count);
  }

  resize(count) {
    this.count = count;
    for (const element of this.shown.values()) element.remove();
    this.shown.clear();
    this.space.style.height = `${count * this.height}px`;
    this.draw();
  }

  at(y) {
    return Math.max(0, Math.min(this.count - 1, Math.floor(y / this.height)));
  }

  draw() {
    if (!this.count) return;
    const y = this.box.scrollTop, first = this.at(y - AROUND), last = this.at(y + this.box.clientHeight + AROUND);
    for (const [i, element] of this.shown) {
      if (i < first || i > last) {
        element.remove();
        this.shown.delete(i);
      }
    }
    for (let i = first; i <= last; i++) {
      if (this.shown.has(i)) continue;
      const element = this.render(i);
      element.dataset.item = i;
      element.classList.add("item");
      element.style.transform = `translateY(${i * this.height}px)`;
      this.shown.set(i, element);
      this.insert(i, element);
    }
  }

  // In the order of the items, so that the keyboard and a screen reader go through them in order.
  insert(i, element) {
    let next = null;
    for (const other of this.space.children) if (Number(other.dataset.item) > i) { next = other; break; }
    this.space.insertBefore(element, next);
  }

  show(i) {
    const top = i * this.height, end = top + this.height;
    if (top < this.box.scrollTop) this.box.scrollTop = top;
    else if (end > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = end - this.box.clientHeight;
    this.draw();
  }

  end() {
    this.outer.disconnect();
    this.box.removeEventListener("scroll", this.onscroll);
    this.space.remove();
  }
}

// Blocks of any height in the page itself. `render(i)` returns the content of a block, or a promise of it; a block
// that is not near the window is empty and keeps its height, which `height(i)` estimates.
export class LazyBlocks {
  constructor(root, { count, height, render, role }) {
    this.root = root;
    this.render = render;
    this.watch = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) if (isIntersecting) this.fill(target); else this.empty(target);
    }, { rootMargin: `${AROUND}px 0px` });
    for (let i = 0; i < count; i++) {
      const block = root.appendChild(document.createElement("div"));
      block.className = "block";
      if (role) block.setAttribute("role", role);
      block.dataset.item = i;
      block.style.minHeight = `${height(i)}px`;
      this.watch.observe(block);
    }
  }

  // Resolves when the block has its content.
  fill(block) {
    if (!block.dataset.wanted) {
      block.dataset.wanted = "1";
      block.filled = this.put(block, this.render(Number(block.dataset.item)));
    }
    return block.filled;
  }

  put(block, content) {
    if (!(content instanceof Node)) return content.then((made) => block.dataset.wanted && this.put(block, made), () => { delete block.dataset.wanted; });
    block.replaceChildren(content);
    block.style.minHeight = "";
  }

  empty(block) {
    if (!block.dataset.wanted) return;
    delete block.dataset.wanted;
    block.style.minHeight = `${block.offsetHeight}px`;
    block.replaceChildren();
  }

  // Makes the content of every filled block again.
  refresh() {
    for (const block of this.root.children) if (block.dataset.wanted) this.put(block, this.render(Number(block.dataset.item)));
  }

  end() {
    this.watch.disconnect();
  }
}
